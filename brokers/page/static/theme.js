// Before anything is drawn: the theme that was chosen here, else the system's.
try {
  const chosen = localStorage.getItem("theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch { /* no storage: the system's */ }
