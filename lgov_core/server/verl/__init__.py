"""Training on verl: the recipe, the run and the host of the endpoint on Ray."""
