"""Devices and hosts: mesh, sharding, jobs with several hosts, preemption and memory."""
