"use strict";
/* The page begins: every section draws itself from the data. */
(() => {
  const {data} = window.placewise;
  document.getElementById("title").textContent = data.title;
  document.title = `${data.title} – Placewise report`;
  if (window.placewise.graph && data.graph) window.placewise.graph(document.getElementById("graph"), data);
})();
