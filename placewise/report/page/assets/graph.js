"use strict";
/* The graph by module. */
