"""`scripts/compose-test`: the image and compose.yaml, tried for real.

Outside (`__main__`): asks what the machine lacks, installs an engine where none runs, and fetches everything that
needs the network. Inside (`inside`): starts the engine, builds, and runs the scenario, in network, mount and process
namespaces of its own: nothing that an engine does to a machine (bridges, firewall rules, mounts, processes) can outlive
it. Where an engine runs already, that one is used, and only what was made in it is removed.
"""
