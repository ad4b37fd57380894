"""Which device runs a model soonest: as it was measured on this machine, or else as its operators let expect."""
