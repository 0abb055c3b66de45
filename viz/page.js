"use strict";
/* Switches every chart on the page between its two clocks; without this the issue order stays in view. */
const show = (clock) => {
  for (const figure of document.querySelectorAll("figure")) {
    const plots = [...figure.querySelectorAll(".plot")];
    const chosen = plots.find((plot) => plot.dataset.clock === clock) || plots[0];
    plots.forEach((plot) => { plot.hidden = plot !== chosen; });
    figure.querySelectorAll(".clock input").forEach((input) => { input.checked = input.value === clock; });
  }
};
document.querySelectorAll(".clock").forEach((control) => {
  control.hidden = false;
  control.addEventListener("change", (event) => show(event.target.value));
});
