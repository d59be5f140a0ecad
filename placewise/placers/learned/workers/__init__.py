"""Many workers: controllers roll out and learn, workers measure, one server has the parameters and the best."""
