"""Studies: what joins the rooms into an answer: inspect a model, price a plan, compare placers."""
