"""Small, real training jobs that the command line, the benchmarks and the tests share."""
