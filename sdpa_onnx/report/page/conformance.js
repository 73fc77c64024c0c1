// Show the rows of one verdict only. Without scripts the buttons stay hidden and everything is shown.
const filter = document.querySelector(".filter");
filter.hidden = false;
document.querySelector(".tally").hidden = true; // the buttons say the same
filter.addEventListener("click", (event) => {
  const pressed = event.target.closest("button");
  if (!pressed) return;
  for (const button of filter.querySelectorAll("button")) button.setAttribute("aria-pressed", button === pressed);
  for (const part of document.querySelectorAll("[data-verdicts]")) {
    const verdicts = part.dataset.verdicts.split(" ");
    part.classList.toggle("filtered-out", pressed.value !== "all" && !verdicts.includes(pressed.value));
  }
});
