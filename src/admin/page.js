// Shows the page anew each second while it is looked at.
"use strict";
const lost = document.getElementById("lost");
const verdict = document.getElementById("verdict");
async function load() {
  // What is selected is to be copied.
  if (document.hidden || !getSelection().isCollapsed) return;
  const answer = await fetch("./", {
    headers: { accept: "text/html" },
    cache: "no-store",
    signal: AbortSignal.timeout(3000),
  });
  const next = new DOMParser().parseFromString(await answer.text(), "text/html");
  const scrolled = document.querySelector(".wide")?.scrollLeft;
  document.querySelector("main").replaceWith(document.adoptNode(next.querySelector("main")));
  if (scrolled) document.querySelector(".wide")?.scrollTo(scrolled, 0);
  document.title = next.title;
  const words = next.getElementById("verdict").textContent;
  if (verdict.textContent !== words) verdict.textContent = words;
}
function again() {
  load().then(() => { lost.hidden = true; }, () => { lost.hidden = false; })
    .finally(() => setTimeout(again, 1000));
}
again();
