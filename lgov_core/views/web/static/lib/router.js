// Addresses: "#/page/part?name=value". A state that a colleague should be able to open is in the address.
import { useEffect, useState } from "./html.js";

/** The current address: {page, parts, query}. `query` is a URLSearchParams. */
export function parse(hash) {
  const [path, search = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [page, ...parts] = path.split("/").map(decode);
  return { page: page ?? "", parts, query: new URLSearchParams(search) };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** An address for `href`. Empty values and null are left out; a list gives the name several times. */
export function link(parts, query = {}) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") search.append(name, one);
    }
  }
  const text = search.toString();
  return "#/" + [].concat(parts).map(encodeURIComponent).join("/") + (text ? "?" + text : "");
}

/** The address with some query values changed; the rest stays. */
export function changed(route, values) {
  const query = {};
  for (const name of new Set(route.query.keys())) query[name] = route.query.getAll(name);
  return link([route.page, ...route.parts], { ...query, ...values });
}

/** Opens an address. `replace` leaves no entry for the back button, for filters typed letter by letter. */
export function go(address, { replace = false } = {}) {
  if (replace) {
    history.replaceState(null, "", address);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = address;
  }
}

export function useRoute() {
  const [route, setRoute] = useState(() => parse(location.hash));
  useEffect(() => {
    const update = () => setRoute(parse(location.hash));
    addEventListener("hashchange", update);
    return () => removeEventListener("hashchange", update);
  }, []);
  return route;
}
