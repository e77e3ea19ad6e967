package e2b

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"sandbox.internal/server/lifecycle"
)

// anywhere is the address range of everything.
const anywhere = "0.0.0.0/0"

// network is what a sandbox may reach and who may reach it. The fields of type any are refused by
// their names when they are there.
type network struct {
	AllowOut           []string `json:"allowOut"`
	DenyOut            []string `json:"denyOut"`
	AllowPublicTraffic *bool    `json:"allowPublicTraffic"`

	Rules           any `json:"rules"`
	EgressProxy     any `json:"egressProxy"`
	MaskRequestHost any `json:"maskRequestHost"`
	HTTPSPorts      any `json:"httpsPorts"`
}

// networkBody is the body of an update, which has no field for incoming traffic.
type networkBody struct {
	network
	AllowInternetAccess *bool `json:"allow_internet_access"`
}

// rule is a rule of a network policy of the service.
type rule struct {
	Action string `json:"action"`
	Target string `json:"target"`
}

// policy is a network policy of the service.
type policy struct {
	DefaultAction string `json:"defaultAction"`
	Egress        []rule `json:"egress"`
}

// policy returns the network policy of a create, nil for none, or why there is none.
func (b createBody) policy() (*policy, string) {
	offline := b.AllowInternetAccess != nil && !*b.AllowInternetAccess
	var asked network
	if b.Network != nil {
		asked = *b.Network
	}
	if !offline && len(asked.AllowOut) == 0 && len(asked.DenyOut) == 0 {
		return nil, asked.unsupported("network.")
	}
	return asked.policy(offline, "network.")
}

// unsupported returns why the fields are refused that have no effect here.
func (n network) unsupported(prefix string) string {
	for _, field := range []struct {
		name  string
		value any
	}{{"rules", n.Rules}, {"egressProxy", n.EgressProxy}, {"maskRequestHost", n.MaskRequestHost}, {"httpsPorts", n.HTTPSPorts}} {
		if field.value != nil && !isEmpty(field.value) {
			return prefix + field.name + ": is not supported by this service"
		}
	}
	return ""
}

// policy returns the policy: what is allowed goes before what is denied.
func (n network) policy(offline bool, prefix string) (*policy, string) {
	if refusal := n.unsupported(prefix); refusal != "" {
		return nil, refusal
	}
	made := &policy{DefaultAction: "allow", Egress: []rule{}}
	if offline || slices.Contains(n.DenyOut, anywhere) {
		made.DefaultAction = "deny"
	}
	for _, target := range n.AllowOut {
		if target == anywhere {
			made.DefaultAction = "allow"
			continue
		}
		if made.DefaultAction == "allow" && !isAddress(target) {
			return nil, fmt.Sprintf("%sallowOut: %.128q: a name needs %s in denyOut: everything is allowed otherwise", prefix, target, anywhere)
		}
		made.Egress = append(made.Egress, rule{"allow", target})
	}
	for _, target := range n.DenyOut {
		if target == anywhere {
			continue
		}
		if !isAddress(target) {
			return nil, fmt.Sprintf("%sdenyOut: %.128q: must be an address or a range of addresses", prefix, target)
		}
		made.Egress = append(made.Egress, rule{"deny", target})
	}
	return made, ""
}

// networkInfo is what a sandbox may reach and who may reach it, as clients see it.
type networkInfo struct {
	AllowOut           []string `json:"allowOut,omitempty"`
	DenyOut            []string `json:"denyOut,omitempty"`
	AllowPublicTraffic bool     `json:"allowPublicTraffic"`
}

// info returns a network policy as clients of E2B give it.
func (p policy) info() networkInfo {
	var shown networkInfo
	if p.DefaultAction == "deny" {
		shown.DenyOut = []string{anywhere}
	}
	for _, r := range p.Egress {
		if r.Action == "deny" {
			shown.DenyOut = append(shown.DenyOut, r.Target)
		} else {
			shown.AllowOut = append(shown.AllowOut, r.Target)
		}
	}
	return shown
}

// network returns what a sandbox may reach and who may reach it. A sandbox without an egress
// sidecar may reach everything. When the sidecar does not answer, the result is nil: a client must
// not read that as a network without rules.
func (x *exchange) network(s lifecycle.Sandbox) *networkInfo {
	var shown networkInfo
	found := x.ask(http.MethodGet, sandboxesPath+"/"+s.ID+"/network-policy", nil, nil)
	switch {
	case found.OK():
		var p policy
		if json.Unmarshal(found.Body.Bytes(), &p) != nil {
			return nil
		}
		shown = p.info()
	case found.Status != http.StatusConflict:
		return nil
	}
	shown.AllowPublicTraffic = !x.edge.isPrivate(s)
	return &shown
}

func isAddress(target string) bool {
	_, err := netip.ParsePrefix(target)
	if err != nil {
		_, err = netip.ParseAddr(strings.TrimSpace(target))
	}
	return err == nil
}

// setNetwork replaces the network policy of a sandbox that has one. What is left out is cleared.
func (x *exchange) setNetwork(id string) {
	var body networkBody
	if !x.readBody(&body) {
		return
	}
	if body.AllowPublicTraffic != nil {
		sendProblem(x.w, http.StatusBadRequest, "allowPublicTraffic: cannot be changed: give it when the sandbox is created")
		return
	}
	if _, ok := x.find(id); !ok {
		return
	}
	offline := body.AllowInternetAccess != nil && !*body.AllowInternetAccess
	made, refusal := body.network.policy(offline, "")
	if refusal != "" {
		sendProblem(x.w, http.StatusBadRequest, refusal)
		return
	}
	changed := x.ask(http.MethodPut, sandboxesPath+"/"+id+"/network-policy", nil, made)
	if !changed.OK() {
		x.refuse(changed)
		return
	}
	flag := map[string]*string{offlineKey: nil}
	if offline {
		on := yes
		flag[offlineKey] = &on
	}
	if noted := x.ask(http.MethodPatch, sandboxesPath+"/"+id+"/metadata", nil, flag); !noted.OK() {
		x.refuse(noted)
		return
	}
	x.w.WriteHeader(http.StatusNoContent)
}
