// Runs before anything is drawn, so that nobody who likes it dark is blinded first. No module: those come later.
document.documentElement.dataset.theme = localStorage.getItem("onward.theme") || "auto";
