"""What every door to the engine promises: one suite for the embedded node and the cluster, blocking and asynchronous."""
