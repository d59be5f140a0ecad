"""OpenVINO's HETERO: one process, several devices of OpenVINO, the pieces of one sample one after another."""
