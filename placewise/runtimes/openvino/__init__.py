"""OpenVINO's HETERO: several devices in one process, with the pieces of one sample one after another."""
