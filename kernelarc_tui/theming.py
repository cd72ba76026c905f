"""The app's colours: one theme before anything is drawn, the others after the first paint, hot-reloaded."""

from __future__ import annotations

from textual import work
from textual.app import App

from engine.errors import BadInput
from kernelarc_tui import themes
from kernelarc_tui.paint import Palette


class ThemedApp(App[str]):
    """``palette`` holds the styles of the theme in use; ``startup_problem`` is said once the app is up."""

    palette: Palette
    startup_problem: str

    def _use_theme(self, name: str) -> None:
        """Register and use one theme before anything is drawn; the others are loaded after the first paint."""
        files = themes.theme_files()
        path = files.get(name) or files[themes.DEFAULT_THEME]
        if name not in files:
            self.startup_problem = f"there is no theme {name!r}; known are {', '.join(files)}"
        try:
            theme = themes.load_theme(path)
        except BadInput as error:
            self.startup_problem = error.message
            theme = themes.load_theme(themes.theme_files()[themes.DEFAULT_THEME])
        self.register_theme(theme)
        self.theme = theme.name

    def get_css_variables(self) -> dict[str, str]:
        variables = super().get_css_variables()
        self.palette = Palette(variables, ansi=self.current_theme.ansi)
        return variables

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Meanings for Textual's own themes, which do not know them."""
        base = {name: getattr(self.current_theme, name, None) or "" for name in themes.BASE_COLORS}
        return themes.fallback_variables(base, ansi=self.current_theme.ansi)

    @work(group="themes", exclusive=True)
    async def watch_themes(self) -> None:
        """Load every theme, then again whenever the user's folder changes."""
        self.load_all_themes()
        folder = themes.user_theme_dir()
        if not folder.is_dir():
            return
        from watchfiles import awatch

        async for _ in awatch(folder, recursive=False):
            self.load_all_themes()

    def load_all_themes(self) -> None:
        """(Re)load the theme files; one toast names the broken ones."""
        loaded, broken = themes.load_themes()
        changed = False
        for theme in loaded:
            changed = changed or (theme.name == self.theme and theme != self.get_theme(theme.name))
            self.register_theme(theme)
        if changed:
            self._watch_theme(self.theme)
        if broken:
            self.notify("\n".join(broken), title="Broken themes", severity="warning", timeout=15, markup=False)

    def own_themes(self) -> list[str]:
        return sorted(set(themes.theme_files()) & set(self.available_themes))
