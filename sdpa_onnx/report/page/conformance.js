// Show only the rows of one verdict. Without scripts the buttons stay hidden and all rows are shown.
const filter = document.querySelector(".filter");
filter.hidden = false;
document.querySelector(".tally").hidden = true; // the buttons show the same counts
filter.addEventListener("click", (event) => {
  const pressed = event.target.closest("button");
  if (!pressed) return;
  for (const button of filter.querySelectorAll("button")) button.setAttribute("aria-pressed", button === pressed);
  for (const part of document.querySelectorAll("[data-verdicts]")) {
    const verdicts = part.dataset.verdicts.split(" ");
    part.classList.toggle("filtered-out", pressed.value !== "all" && !verdicts.includes(pressed.value));
  }
});
