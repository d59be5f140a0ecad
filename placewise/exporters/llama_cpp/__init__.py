"""llama.cpp: a plan as the options of llama-server, which llama-cli takes too."""
