// Addresses of the atlas: the part after # says which section is shown, and with which settings.
"use strict";
(() => {
  const Atlas = (window.Atlas = window.Atlas || {});
  const sections = [...document.querySelectorAll("body > section")];
  const tabs = [...document.querySelectorAll("nav.top > a")];
  const title = document.title;

  // Change the address without a new entry in the history, as a form does that is changed often.
  function replaceAddress(section, settings) {
    history.replaceState(null, "", address(section, settings));
    markAddress();
  }

  // Say on the page which address it shows: after a click on a link, location.hash changes before the page does.
  function markAddress() {
    document.body.dataset.address = location.hash;
  }

  function address(section, settings) {
    const text = String(settings);
    return `#${section}${text ? `?${text}` : ""}`;
  }

  function go(section, settings) {
    replaceAddress(section, settings);
    show();
  }

  function show() {
    const [path, query = ""] = location.hash.slice(1).split(/\?(.*)/s);
    const [kind, name] = path.split("/");
    const settings = new URLSearchParams(query);
    const isMember = kind === "member" && Atlas.byName.has(name);
    const known = sections.some((section) => section.id === kind);
    const section = isMember ? "members" : kind === "idea" ? "ideas" : known ? kind : "members";
    for (const element of sections) element.hidden = element.id !== section;
    for (const tab of tabs) {
      if (tab.hash === `#${section}`) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
    }
    document.body.dataset.alone = String(isMember);
    document.body.dataset.first = String(section === "members" && !isMember);
    if (isMember) Atlas.showMember(name);
    else if (section === "members") Atlas.showMembers(settings);
    else if (section === "lineage") Atlas.showLineage(settings);
    else if (section === "playground") Atlas.showPlayground(settings);
    else if (section === "compare") Atlas.showPair(settings);
    else Atlas.showIdea(kind === "idea" ? name : null);
    document.title = isMember ? `${name}, ${title}` : title;
    markAddress();
  }

  // Show the page of one idea, or the list of all ideas.
  function showIdea(key) {
    const ideas = [...document.querySelectorAll(".idea")];
    const isKnown = ideas.some((idea) => idea.id === `idea/${key}`);
    for (const idea of ideas) {
      idea.hidden = isKnown && idea.id !== `idea/${key}`;
      idea.classList.toggle("open", isKnown);
    }
  }

  Object.assign(Atlas, { go, replaceAddress, showIdea });
  document.body.classList.add("scripted");
  window.addEventListener("hashchange", () => {
    show();
    window.scrollTo(0, 0);
  });
  show();
})();
