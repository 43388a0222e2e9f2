"""From a config to the compiled steps of its phases."""
