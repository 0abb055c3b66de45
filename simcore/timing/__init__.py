"""From programs to time: kernels, collectives, hosts, streams, the timeline of all classes, and where the time goes."""
