"""Applications: an Inputter (data), a Modeler (model) and a Runner (what is done with them)."""
