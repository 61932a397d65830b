"""Two-phase commit over the partitions: `coordinator` decides, `participant` votes, `commits` is what one is made of."""
