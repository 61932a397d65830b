"""Programs around the engine: the `foreshore` command, the demo, the benchmark, the Spark jobs."""
