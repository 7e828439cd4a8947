"""Where it runs: meshes, hosts, placement, and plans for devices that are not there."""
