package reach_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/reach"
)

func TestAdmit(t *testing.T) {
	k := keys(t, newKey)
	good, other, over := k.Sign("box", "T", 8000, now.Add(time.Minute)), k.Sign("box", "T", 8001, now.Add(time.Minute)), k.Sign("box", "T", 8000, now)
	signed := func(query ...string) reach.Signatures { return reach.Signatures{Query: query} }
	for name, tc := range map[string]struct {
		token, sent string
		signatures  reach.Signatures
		by          reach.Way
		says        string // of the refusal
	}{
		"token":                       {"T", "T", reach.Signatures{}, reach.ByToken, ""},
		"another token":               {"T", "T2", reach.Signatures{}, "", "header X-EXECD-ACCESS-TOKEN: is not"},
		"a sandbox without a token":   {"", "T", reach.Signatures{}, "", "header X-EXECD-ACCESS-TOKEN: is not"},
		"neither has a token":         {"", "", reach.Signatures{}, "", "is required"},
		"no token is sent":            {"T", "", reach.Signatures{}, "", "is required"},
		"signature":                   {"T", "", signed(good), reach.BySignature, ""},
		"a second signature":          {"T", "", signed(other, good), reach.BySignature, ""},
		"signature of another port":   {"T", "", signed(other), "", "query parameter sandbox-signature: "},
		"signature that has expired":  {"T", "", signed(over), "", "expired"},
		"cookie":                      {"T", "", reach.Signatures{Cookies: []string{other, good}}, reach.ByCookie, ""},
		"signature of an earlier box": {"T2", "", signed(good), "", "query parameter sandbox-signature: "},
		"cookie of an earlier box":    {"T2", "", reach.Signatures{Cookies: []string{good}}, "", "cookie sandbox-signature: "},
		"another cookie":              {"T", "", reach.Signatures{Cookies: []string{other}}, "", "cookie sandbox-signature: "},
		"a query before a cookie":     {"T", "", reach.Signatures{Query: []string{good}, Cookies: []string{good}}, reach.BySignature, ""},
		"a token decides alone":       {"T", "T2", signed(good), "", "header X-EXECD-ACCESS-TOKEN: is not"},
		"a token before a signature":  {"T", "T", signed(other), reach.ByToken, ""},
		"an empty signature":          {"T", "", signed(""), "", "query parameter sandbox-signature: "},
	} {
		pass, err := k.Admit(reach.Visit{ID: "box", Port: 8000, Token: tc.token, Sent: tc.sent, Signatures: tc.signatures}, now)
		if tc.says == "" {
			if err != nil || pass.By != tc.by {
				t.Errorf("%s: %+v, %v", name, pass, err)
			}
			if tc.by == reach.BySignature && (pass.Signature != good || !pass.Until.Equal(now.Add(time.Minute))) {
				t.Errorf("%s: the pass is %+v", name, pass)
			}
			continue
		}
		problem, ok := err.(*serve.Problem)
		if !ok || problem.Status != http.StatusUnauthorized || !strings.Contains(problem.Message, tc.says) || pass != (reach.Pass{}) {
			t.Errorf("%s: %+v, %v", name, pass, err)
		}
	}
}
