package reach

import (
	"net/http"
	"net/url"
	"strings"
)

// SignatureName is the name of the query parameter, and of the cookie, that carries a signature.
const SignatureName = "sandbox-signature"

// RouteHeader is the header that names the sandbox and the port to an ingress in header mode
// (lifecycle document, "Networking rules", 5).
const RouteHeader = "Service-Ingress-To"

// maxSignatures bounds how many signatures of one kind are looked at. There is more than one where
// another service has set a cookie for a host above.
const maxSignatures = 8

// Signatures are what a request carries.
type Signatures struct {
	Query   []string
	Cookies []string
}

// TakeSignatures returns the signatures of a request, and the request without them: not in its
// query, its cookies or its Referer. The program in the sandbox must get this one. Everything else
// stays as the client wrote it. The request given is not changed.
func TakeSignatures(r *http.Request) (*http.Request, Signatures) {
	var found Signatures
	query, inQuery := takeQuery(r.URL.RawQuery, &found.Query)
	cookies, inCookies := takeCookies(r.Header["Cookie"], &found.Cookies)
	referers, inReferer := cleanReferers(r.Header["Referer"])
	if !inQuery && !inCookies && !inReferer {
		return r, found
	}
	clean := *r
	if inQuery {
		u := *r.URL
		u.RawQuery, u.ForceQuery = query, false
		clean.URL = &u
		clean.RequestURI = "" // it has the signature
	}
	clean.Header = r.Header.Clone()
	set(clean.Header, "Cookie", cookies)
	set(clean.Header, "Referer", referers)
	return &clean, found
}

func set(header http.Header, name string, values []string) {
	if len(values) == 0 {
		header.Del(name)
		return
	}
	header[name] = values
}

// takeQuery takes the parameter out of a raw query, however its name is escaped.
func takeQuery(query string, found *[]string) (rest string, taken bool) {
	if query == "" {
		return "", false
	}
	kept := make([]string, 0, 8)
	for part := range strings.SplitSeq(query, "&") {
		name, value, _ := strings.Cut(part, "=")
		if decoded, err := url.QueryUnescape(name); err != nil || decoded != SignatureName {
			kept = append(kept, part)
			continue
		}
		taken = true
		if decoded, err := url.QueryUnescape(value); err == nil && len(*found) < maxSignatures {
			*found = append(*found, decoded)
		}
	}
	return strings.Join(kept, "&"), taken
}

func takeCookies(lines []string, found *[]string) (rest []string, taken bool) {
	for _, line := range lines {
		var kept []string
		for part := range strings.SplitSeq(line, ";") {
			name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
			if strings.TrimSpace(name) != SignatureName {
				kept = append(kept, strings.TrimSpace(part))
				continue
			}
			taken = true
			if len(*found) < maxSignatures {
				*found = append(*found, strings.Trim(strings.TrimSpace(value), `"`))
			}
		}
		if len(kept) > 0 {
			rest = append(rest, strings.Join(kept, "; "))
		}
	}
	return rest, taken
}

// cleanReferers takes signatures out of what the browser says about the page that a request comes
// from. What cannot be read is left out as a whole if it may hold one.
func cleanReferers(lines []string) (rest []string, taken bool) {
	for _, line := range lines {
		before, after, asked := strings.Cut(line, "?")
		if !asked {
			rest = append(rest, line)
			continue
		}
		query, fragment, _ := strings.Cut(after, "#")
		var ignored []string
		query, inQuery := takeQuery(query, &ignored)
		switch {
		case strings.Contains(fragment, SignatureName):
			taken = true
		case inQuery:
			taken = true
			if query != "" {
				before += "?" + query
			}
			rest = append(rest, before)
		default:
			rest = append(rest, line)
		}
	}
	return rest, taken
}
