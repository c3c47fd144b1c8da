"""Devices and hosts: the mesh, sharding rules, jobs with several hosts, preemption and host memory."""
