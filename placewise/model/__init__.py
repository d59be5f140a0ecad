"""The data of Placewise: frozen dataclasses over read-only arrays, validated once, on construction."""
