package proxy

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// sandboxPolicy makes the browser treat a page as one of an origin of its own: its
// scripts run, but reach neither what other pages of the real origin have stored nor
// their answers.
const sandboxPolicy = "sandbox allow-scripts allow-forms allow-popups allow-downloads"

// originWide are headers whose effect is on the whole origin of an answer, or on its
// whole host, and not on the answer alone. They are in net/http's own spelling.
var originWide = []string{
	"Alt-Svc", "Clear-Site-Data", "Nel", "Public-Key-Pins", "Report-To", "Service-Worker-Allowed", "Strict-Transport-Security",
}

// commanding are what the names of headers begin with that a proxy in front of this one may obey
// instead of sending the answer on: with X-Accel-Redirect or X-Sendfile it answers with another of
// its own resources, for which it repeats the client's request with the client's key.
var commanding = []string{"X-Accel-", "X-Lighttpd-", "X-Litespeed-", "X-Reproxy-", "X-Sendfile"}

// withoutCommands takes out of an answer, an interim one too, what commands a proxy in front.
// X-Accel-Buffering stays: it is about the answer alone.
func withoutCommands(header http.Header) {
	for name := range header {
		if name != "X-Accel-Buffering" && slices.ContainsFunc(commanding, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			delete(header, name)
		}
	}
}

// confine takes out of an answer what would reach beyond the target's prefix in a
// browser: pages get an origin of their own, cookies a path below the prefix, and
// settings of the whole origin are dropped.
func confine(response *http.Response, r *http.Request, target Target) {
	if response.StatusCode != http.StatusSwitchingProtocols {
		// Added to what the server sets: a browser enforces every policy.
		response.Header.Add("Content-Security-Policy", sandboxPolicy)
	}
	for _, name := range originWide {
		delete(response.Header, name)
	}
	cookies := response.Header["Set-Cookie"]
	for i, cookie := range cookies {
		cookies[i] = confineCookie(cookie, r.URL.Path, target)
	}
}

// confineInterim is confine for an interim answer, which is no page and has no need of cookies.
func confineInterim(header http.Header) {
	header.Del("Set-Cookie")
	for _, name := range originWide {
		delete(header, name)
	}
}

// confineCookie takes the domain of a cookie away and gives it a path below the
// prefix. All other attributes stay as they are.
func confineCookie(cookie, requestPath string, target Target) string {
	cookie, attributes := splitCookie(cookie)
	path := ""
	attributes = slices.DeleteFunc(attributes, func(part string) bool {
		name, value, _ := strings.Cut(part, "=")
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "path":
			path = strings.TrimSpace(value) // the last one counts
			return true
		case "domain":
			return true
		}
		return false
	})
	parts := append([]string{cookie}, attributes...)
	if !strings.HasPrefix(path, "/") {
		// Without a path the browser takes the directory of the request. That is below the
		// prefix, unless the request was for the prefix itself.
		if requestPath != target.Prefix {
			return strings.Join(parts, ";")
		}
		path = "/"
	}
	// Without its last slash a path also covers the request for the prefix itself.
	if path = strings.TrimSuffix(outside(path, target), "/"); path == "" {
		path = "/"
	}
	return strings.Join(append(parts, " Path="+path), ";")
}

// splitCookie parts a cookie, which may have the name of an attribute, from its
// attributes.
func splitCookie(cookie string) (pair string, attributes []string) {
	parts := strings.Split(cookie, ";")
	return parts[0], parts[1:]
}

// keepToHost takes the domain of every cookie away.
func keepToHost(header http.Header) {
	for i, cookie := range header["Set-Cookie"] {
		cookie, attributes := splitCookie(cookie)
		attributes = slices.DeleteFunc(attributes, func(part string) bool {
			name, _, _ := strings.Cut(part, "=")
			return strings.EqualFold(strings.TrimSpace(name), "domain")
		})
		header["Set-Cookie"][i] = strings.Join(append([]string{cookie}, attributes...), ";")
	}
}

// redirect makes a Location that the server gave for its own paths one that leads
// through the proxy again.
func redirect(header http.Header, r *http.Request, target Target) {
	location := header.Get("Location")
	if location == "" {
		return
	}
	u, err := url.Parse(location)
	if err != nil {
		return
	}
	if u.Host != "" {
		web := u.Scheme == "http" || u.Scheme == "https" || u.Scheme == ""
		own := slices.Contains(target.Names, u.Host) || u.Host == target.Address || u.Host == r.Host || u.Host == r.Header.Get("X-Forwarded-Host")
		if !web || !own {
			return
		}
		u.Scheme, u.Host, u.User = "", "", nil
		if u.Path == "" {
			u.Path = "/"
		}
		location = u.String()
	}
	// What does not begin with a slash now is relative, or of another kind, and stays right.
	if strings.HasPrefix(location, "/") {
		header.Set("Location", outside(location, target))
	}
}

// outside is a path of the server as the client has to write it. A server that heeds
// X-Forwarded-Prefix has put it in front already.
func outside(path string, target Target) string {
	end := strings.IndexAny(path, "?#")
	if end < 0 {
		end = len(path)
	}
	switch {
	case target.Prefix != "" && under(path[:end], target.Prefix):
		return path
	case target.Path != "" && under(path[:end], target.Path):
		return target.Prefix + path[len(target.Path):]
	}
	return target.Prefix + path
}
