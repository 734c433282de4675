"""The sites of one call, by module and method: what the plan of a wrapper says, with
the hooks and logs of the call.
"""

import dataclasses
import functools as ft
from collections.abc import Sequence
from typing import Any

from .._engine.active_calls import Acting
from .._engine.site import freeze, Frozen, ModuleKey, Side, Site, suffix_of
from .._hooks.log_fns import IdentityLog
from .._sites.chosen import Chosen
from .._sites.patterns import first_match
from .._sites.places import places
from .._sites.stacked import grouped, Prefix
from .hook_collector import HookCollector
from .plan import Plan


SitesByKey = dict[str, dict[str, tuple[Site | ModuleKey, ...]]]


@dataclasses.dataclass
class SiteMaker:
    """Makes the sites of one run."""

    plan: Plan
    collector: HookCollector
    backward: bool

    def __call__(
        self,
        key: str,
        suffix: str,
        hook: str | None,
        log: str | None,
        chosen: Chosen | None = None,
        inside: tuple[str, int | None] | None = None,
    ) -> Site | None:
        """A site, from its key, the names of its hook and log, and what `where` chose,
        if it did; `None` if there is nothing to do.
        """
        call, but = (None, ()) if chosen is None else (chosen.call, chosen.but)
        plan, collector = self.plan, self.collector
        acting = collector.frozen.get(hook) if hook else None
        if hook and acting is not None and (call is not None or but):
            acting = collector.in_calls(hook, but)
        around = None
        if collector.is_around(hook):
            acting, around = None, acting if chosen is not None else None
        site = Site(
            key=key,
            depth=collector.scope.depth,
            direct=collector.direct,
            backward=self.backward,
            side=Side.INPUT if chosen is not None and chosen.is_input else plan.side,
            hook=acting,
            around=around,
            log=collector.frozen.get(log) if log else None,
            asked=bool(plan.asked),
            while_buffer=plan.while_buffer,
            inside=inside,
            suffix=suffix,
            call=call,
            alias=None if chosen is None else chosen.named(suffix),
        )
        acts = any(fn is not None for fn in (site.hook, site.around, site.log))
        return site if acts or site.asked else None

    def of_probe(self, module: str, name: str, index: int) -> Site | None:
        """The site of a probe, met while the method of a module ran."""
        suffix = suffix_of(name, index)
        key = f"{module}{suffix}"
        if self.plan.default:
            first = ft.partial(first_match, key=key, suffix=suffix)
            hook, log = (first(what, fn) for what, fn in self.collector.fns.items())
            return self(key, suffix, hook, log)
        for chosen, hook, log in self.plan.chosen:
            root_method = self.plan.root_method
            groups = self.collector.groups
            if names_probe(chosen, root_method, groups, module, name, index):
                return self(key, suffix, hook, log, chosen)
        return None

    def of_own_probe(self, acting: Acting, name: str, index: int) -> Site | None:
        """The site of a probe that was met in this wrapper's own hook or log, neither
        of which acts on what it runs itself.
        """
        site: Site = acting.site
        if self.backward:
            return None  # in the backward pass no call is running
        end = suffix_of(name, index)
        key, suffix = f"{site.key}{end}", f"{site.suffix}{end}"
        log: Frozen | None = _ITSELF
        if not acting.is_log:
            found = first_match("log_fn", self.collector.fns["log_fn"], key, suffix)
            log = self.collector.frozen.get(found) if found else None
        if log is None:
            return None
        alias = site.alias
        if site.call is not None:
            alias = site.numbered(site.call), end
        elif alias is not None:
            alias = alias[0], f"{alias[1]}{end}"
        return dataclasses.replace(
            site,
            key=key,
            suffix=suffix,
            side=Side.OUTPUT,
            hook=None,
            log=log,
            asked=False,
            inside=None,
            call=None,
            alias=alias,
        )


# Records the value itself.
_ITSELF, _ = freeze("log_fn in a log", IdentityLog(), is_identity=True)


def names_probe(
    chosen: Chosen,
    root_method: str,
    groups: Sequence[Prefix],
    module: str,
    name: str,
    index: int,
) -> bool:
    """Whether a chosen value is this probe, met while the method of `module` ran."""
    around = grouped(chosen.module_key(root_method), groups)
    return around == module and chosen.names(name, index)


def may_be_site(plan: Plan, name: str) -> bool:
    """Whether a probe of this name may be a site."""
    return plan.default or any(chosen.names(name) for chosen, _, _ in plan.chosen)


def sites_of(make: SiteMaker) -> SitesByKey:
    """The sites by module and method."""
    sites: SitesByKey = {}
    plan = make.plan
    for chosen, hook, log in plan.chosen:
        key = chosen.site_key(plan.root_method)
        site = make(key, chosen.suffix, hook, log, chosen, chosen.value)
        if site is not None:
            methods = sites.setdefault(chosen.place, {})
            methods[chosen.method] = (*methods.get(chosen.method, ()), site)
    return sites


def tell_keys(sites: SitesByKey, model: Any, make: SiteMaker) -> None:
    """Has every callable module without a site tell its key while it runs, too."""
    root_method, depth = make.plan.root_method, make.collector.scope.depth
    for place in places(model, root_method):
        if not place.called:
            continue
        methods = sites.setdefault(place.name, {})
        entry = root_method if place.key == () else "__call__"
        for method in {entry: None, **methods}:
            key = Chosen(place.name, method).key(root_method)
            if not methods.get(method):
                methods[method] = (ModuleKey(key, depth),)
