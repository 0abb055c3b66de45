"""Pipeline schedules: the order of forward and backward microbatches on each stage; one file a schedule."""
