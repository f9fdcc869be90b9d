"""Products over several GPUs, or over several processes without one."""
