"""The command line `sume-jobs`: see it, steer it, repair it, from a terminal.

Every command works on the database that is named (`--database-url`, else the same variables as
the functions), else on that of the bundle which runs on this machine. Modules of commands import
what they need inside the commands, so that `--help` is quick.
"""
