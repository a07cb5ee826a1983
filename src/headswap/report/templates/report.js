"use strict";
// Shows the sentence of the mark under the pointer, or of the mark that was tapped.
(() => {
  const hint = document.getElementById("hint");
  const show = (event) => {
    const mark = event.target.closest && event.target.closest('svg [aria-roledescription="point"]');
    if (!mark) { hint.hidden = true; return; }
    hint.textContent = mark.getAttribute("aria-label");
    hint.hidden = false;
    const room = document.documentElement.clientWidth - hint.offsetWidth - 8;
    hint.style.left = Math.max(4, Math.min(event.pageX + 12, window.scrollX + room)) + "px";
    hint.style.top = event.pageY + 16 + "px";
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  const open = [];
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("details:not([open])").forEach((part) => { part.open = true; open.push(part); });
  });
  window.addEventListener("afterprint", () => { open.splice(0).forEach((part) => { part.open = false; }); });
})();
