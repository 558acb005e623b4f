// Sets the theme before anything is drawn, so that a dark page does not flash white first. It is not a module, because modules run later.
document.documentElement.dataset.theme = localStorage.getItem("onward.theme") || "auto";
