package compat

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"sandbox.internal/server/lifecycle"
)

// endpoint gives the service's own path where the client asks for it, and always for the egress
// sidecar: what is behind that path are the service's operations for the network policy.
func (x *exchange) endpoint(id, port string) {
	query, err := url.ParseQuery(x.r.URL.RawQuery)
	if err != nil {
		x.pass()
		return
	}
	own := port == egressPort
	switch viaService, err := strconv.ParseBool(query.Get("use_server_proxy")); {
	case err == nil && viaService && query.Has("expires"): // one excludes the other: the service refuses the parameter
	case err == nil:
		own = own || viaService
		query.Del("use_server_proxy")
	}
	if seconds, err := strconv.ParseInt(query.Get("expires"), 10, 64); err == nil {
		own = false
		query.Set("expires", time.Unix(seconds, 0).UTC().Format(time.RFC3339))
	}
	found := x.ask(http.MethodGet, x.r.URL.Path, query, nil)
	var endpoint object
	if !found.OK() || json.Unmarshal(found.Body.Bytes(), &endpoint) != nil {
		x.sendUnlessGone(found)
		return
	}
	headers, secure := map[string]string{}, ""
	if x.edge.secures(x.r.Context(), id) {
		var given map[string]string
		_ = json.Unmarshal(endpoint["headers"], &given)
		secure = given[lifecycle.TokenHeader]
	}
	if own {
		address := x.r.Host + sandboxesPath + "/" + id + "/proxy/" + port
		scheme := "http"
		// The service itself never has TLS: a reverse proxy before it reports the scheme of the
		// client.
		if strings.EqualFold(x.r.Header.Get("X-Forwarded-Proto"), "https") {
			scheme = "https"
		}
		endpoint["endpoint"], endpoint["url"] = quoted(address), quoted(scheme+"://"+address)
		if x.key != "" {
			headers[keyHeader] = x.key
		}
	} else if json.Unmarshal(endpoint["headers"], &headers) != nil || headers == nil {
		headers = map[string]string{}
	}
	if port == daemonPort && !query.Has("expires") || own && port == egressPort {
		headers[dialectHeader] = dialect
	}
	if secure != "" {
		headers[secureHeader] = secure
	}
	endpoint["headers"] = encode(headers)
	found.sendJSON(x.w, endpoint)
}

// policy answers for the API of the egress sidecar.
func (x *exchange) policy(path string) {
	method := x.r.Method
	var body []byte
	switch method {
	case http.MethodGet:
	case http.MethodPost, http.MethodPut:
		method = http.MethodPut
		var ok bool
		if body, ok = x.take(); !ok {
			x.pass()
			return
		}
		var policy object
		if len(body) == 0 || json.Unmarshal(body, &policy) == nil {
			if policy == nil {
				policy = object{}
			}
			toPolicy(policy)
			body = encode(policy)
		}
		x.r.Header.Set("Content-Type", "application/json")
	case http.MethodPatch, http.MethodDelete:
		var ok bool
		if body, ok = x.take(); !ok {
			x.pass()
			return
		}
	default:
		x.pass()
		return
	}
	changed := x.ask(method, path, x.r.URL.Query(), body)
	var policy struct {
		DefaultAction string `json:"defaultAction"`
		Egress        []rule `json:"egress"`
	}
	if !changed.OK() || json.Unmarshal(changed.Body.Bytes(), &policy) != nil {
		x.sendUnlessGone(changed)
		return
	}
	mode := "enforcing"
	if len(policy.Egress) == 0 {
		mode, policy.Egress = policy.DefaultAction+"_all", []rule{}
	}
	changed.sendJSON(x.w, map[string]any{"status": "ok", "mode": mode, "enforcementMode": enforcement, "policy": policy})
}

// enforcement is what OpenSandbox calls the way in which policies are enforced here: by addresses,
// which the answers to names open.
const enforcement = "dns+nft"

// rule is a rule of a network policy with the fields that OpenSandbox has.
type rule struct {
	Action string `json:"action"`
	Target string `json:"target"`
}
