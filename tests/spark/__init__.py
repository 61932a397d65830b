"""What runs on a real Spark. A session costs many seconds, so there is one for all, and one process of `spark-submit`."""
