"""List scheduling: ops in the order of a priority, each on the device where it fits best.

`HeftPlacer` implements HEFT and CPOP (Topcuoglu et al. 2002). `EtfPlacer` (Hwang et al. 1989), its variant with
favourite children (Hanen and Munier 1995) and `TopoPlacer` stay within memory, as in Baechi (Jeon et al. 2020).
"""
