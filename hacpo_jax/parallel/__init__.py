"""Where a run works: meshes, sharding rules, processes, placement, and plans made ahead."""
