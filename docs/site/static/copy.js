// Adds a button to each block of code that copies it.
document.addEventListener("DOMContentLoaded", () => {
  for (const code of document.querySelectorAll("div.highlight > pre")) {
    const button = document.createElement("button");
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.innerText);
        button.textContent = "Copied";
      } catch {
        // Without permission, the code is selected, for Ctrl-C.
        getSelection().selectAllChildren(code);
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    code.after(button);
  }
});
