// Light or dark theme; the system's until the user chooses one. Runs before the first paint to avoid a flash.
'use strict';

(() => {
  const CHOICES = ['auto', 'light', 'dark'];
  // A browser may refuse storage; the choice then lasts as long as the page.
  const stored = () => { try { return localStorage.getItem('leasehold.theme'); } catch { return null; } };
  const store = (choice) => { try { localStorage.setItem('leasehold.theme', choice); } catch { /* see above */ } };

  let choice = CHOICES.includes(stored()) ? stored() : 'auto';
  const apply = () => { document.documentElement.dataset.theme = choice; };
  apply();

  window.leaseholdTheme = {
    get choice() { return choice; },
    next() {
      choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
      store(choice);
      apply();
      return choice;
    },
  };
})();
