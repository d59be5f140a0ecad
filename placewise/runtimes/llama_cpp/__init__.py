"""The real llama.cpp, loaded from the package `xllamacpp`: what it allocates, and how fast it is."""
