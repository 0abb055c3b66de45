// Elements that the theme's script makes, with what keyboards and screen readers need of them: what scrolls is reached by
// Tab, and each bar of buttons has a name of its own.
const mend = () => {
  document.querySelectorAll(".md-code__nav").forEach((bar, at) => bar.setAttribute("aria-label", `Code ${at + 1}`));
  document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code").forEach(box => {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  });
};

addEventListener("resize", mend);
new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
mend();
