package api_test

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	gen "sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/server/api"
	"sandbox.internal/server/keys"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/store"
	"sandbox.internal/test/wait"
)

// keptKeys are allKeys, and those that a store keeps.
func keptKeys(t *testing.T, clock func() time.Time) *keys.Ring {
	t.Helper()
	records, err := store.Open(t.TempDir(), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { records.Close() })
	ring, err := keys.New(t.Context(), keys.Options{
		Configured: allKeys(), Store: records, Clock: clock, Logger: zerolog.Nop(),
		Bounds: lifecycle.Bounds{Section: "server.limits", Max: lifecycle.ResourceLimits{"cpu": "2"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ring.Close)
	return ring
}

func createKey(t *testing.T, s *service, request gen.CreateKeyRequest) *gen.IssuedKey {
	t.Helper()
	response, err := s.client.CreateKeyWithResponse(t.Context(), request, with(adminSecret))
	if err != nil || response.JSON201 == nil {
		t.Fatalf("%v, %s", err, response.Body)
	}
	if got := response.HTTPResponse.Header.Get("Cache-Control"); got != "no-store" {
		t.Errorf("an answer with a secret has Cache-Control %q", got)
	}
	return response.JSON201
}

// TestLifeOfAKey: what is made at the service lets in, is shown without its secret, and does not
// let in once it is gone.
func TestLifeOfAKey(t *testing.T) {
	b := newBackend()
	s := serveWith(t, api.Options{Backend: b, Keys: keptKeys(t, nil)})
	ctx := t.Context()
	issued := createKey(t, s, gen.CreateKeyRequest{
		Name: "team/ci 1", Role: gen.KeyRoleUser,
		Limits:    &gen.KeyLimits{MaxSandboxes: new(3), MaxCPU: new("1"), MaxTimeout: new(120)},
		RateLimit: &gen.KeyRateLimit{RequestsPerSecond: 100},
	})
	if !strings.HasPrefix(issued.Secret, "sbk_") || len(issued.Secret) != len("sbk_")+64 {
		t.Errorf("secret %q", issued.Secret)
	}
	created, err := s.client.CreateSandboxWithResponse(ctx, nil, createRequest(), with(issued.Secret))
	if err != nil || created.StatusCode() != http.StatusAccepted {
		t.Fatalf("%v, %s", err, created.Body)
	}
	if o := b.options; o.Owner != "team/ci 1" || o.Role != lifecycle.RoleUser || o.MaxSandboxes != 3 || o.Bounds.Max["cpu"] != "1" || o.Bounds.MaxTimeout != 2*time.Minute {
		t.Errorf("created with %+v", o)
	}
	got, err := s.client.GetKeyWithResponse(ctx, "team/ci 1", with(adminSecret))
	if err != nil || got.JSON200 == nil {
		t.Fatalf("%v, %s", err, got.Body)
	}
	if k := got.JSON200; k.Source != gen.KeySourceService || k.LastUsedAt == nil || k.CreatedAt == nil || *k.Limits.MaxTimeout != 120 || k.RateLimit.RequestsPerSecond != 100 {
		t.Errorf("%s", got.Body)
	}
	list, err := s.client.ListKeysWithResponse(ctx, &gen.ListKeysParams{PageSize: new(2), Page: new(3)}, with(adminSecret))
	if err != nil || list.JSON200 == nil {
		t.Fatalf("%v, %s", err, list.Body)
	}
	if l := list.JSON200; len(l.Items) != 1 || l.Items[0].Name != "viewer" || l.Items[0].Source != gen.KeySourceConfiguration || l.Pagination.TotalItems != 5 || l.Pagination.TotalPages != 3 {
		t.Errorf("%s", list.Body)
	}
	for _, body := range [][]byte{got.Body, list.Body} {
		if strings.Contains(string(body), issued.Secret) || strings.Contains(strings.ToLower(string(body)), "digest") {
			t.Errorf("an answer has a secret: %s", body)
		}
	}
	if r, err := s.client.DeleteKeyWithResponse(ctx, "team/ci 1", with(adminSecret)); err != nil || r.StatusCode() != http.StatusNoContent {
		t.Fatalf("%v, %s", err, r.Body)
	}
	if status := statusOf(t, s, http.MethodGet, "/v1/sandboxes", "", issued.Secret); status != http.StatusUnauthorized {
		t.Errorf("a removed key is let in: %d", status)
	}
	if line := s.log.accessLine(t, "createKey"); line["subject_key"] != "team/ci 1" || line["key_name"] != "server.api_key" {
		t.Errorf("%v", line)
	}
	if strings.Contains(s.log.text(), issued.Secret) {
		t.Error("the log has the secret")
	}
}

// TestErrorsOfKeys: each names the field and the rule, or where the key is.
func TestErrorsOfKeys(t *testing.T) {
	s := serveWith(t, api.Options{Backend: newBackend(), Keys: keptKeys(t, nil)})
	createKey(t, s, gen.CreateKeyRequest{Name: "ci", Role: gen.KeyRoleAdmin})
	for request, want := range map[string]struct {
		status int
		words  []string
	}{
		`POST /v1/keys {"name": "ci", "role": "user"}`:                                                   {409, []string{"name", `"ci"`, "already"}},
		`POST /v1/keys {"name": "alice", "role": "user"}`:                                                {409, []string{"name", "configuration"}},
		`POST /v1/keys {"name": "server.api_key", "role": "user"}`:                                       {400, []string{"name", "server.api_key"}},
		`POST /v1/keys {"name": "signed endpoint", "role": "user"}`:                                      {400, []string{"name", "signed endpoint"}},
		`POST /v1/keys {"name": " ", "role": "user"}`:                                                    {400, []string{"name", "blank"}},
		`POST /v1/keys {"name": "..", "role": "user"}`:                                                   {400, []string{"name", "path"}},
		`POST /v1/keys {"name": "a\u0007", "role": "user"}`:                                              {400, []string{"name", "control"}},
		`POST /v1/keys {"name": "` + strings.Repeat("é", 65) + `", "role": "user"}`:                      {400, []string{"name", "128 bytes"}},
		`POST /v1/keys {"name": "x", "role": "root"}`:                                                    {400, []string{"role"}},
		`POST /v1/keys {"name": "x"}`:                                                                    {400, []string{"role"}},
		`POST /v1/keys {"name": "x", "role": "user", "expiresAt": "2020-01-01T00:00:00Z"}`:               {400, []string{"expiresAt", "future"}},
		`POST /v1/keys {"name": "x", "role": "user", "expiresAt": "9999-12-31T23:59:59-01:00"}`:          {400, []string{"expiresAt", "10000"}},
		`POST /v1/keys {"name": "x", "role": "user", "limits": {"maxCpu": "99999999999999999999999"}}`:   {400, []string{"limits.maxCpu"}},
		`POST /v1/keys {"name": "x", "role": "user", "expiresAt": "0001-01-01T00:00:00Z"}`:               {400, []string{"expiresAt", "future"}},
		`POST /v1/keys/ci/rotate {"expiresAt": "0001-01-01T00:00:00Z"}`:                                  {400, []string{"expiresAt", "future"}},
		`POST /v1/keys {"name": "x", "role": "user", "limits": {"maxCpu": "many"}}`:                      {400, []string{"maxCpu"}},
		`POST /v1/keys {"name": "x", "role": "user", "limits": {"defaultCpu": "4"}}`:                     {400, []string{"limits.defaultCpu", "limits.maxCpu"}},
		`POST /v1/keys {"name": "x", "role": "user", "limits": {"maxTimeout": 59}}`:                      {400, []string{"maxTimeout", "60"}},
		`POST /v1/keys {"name": "x", "role": "user", "rateLimit": {"requestsPerSecond": 0, "burst": 3}}`: {400, []string{"rateLimit.burst"}},
		`POST /v1/keys {"name": "x", "role": "user", "limit": {}}`:                                       {400, []string{"limit"}},
		`GET /v1/keys/nobody `:                                          {404, []string{`"nobody"`}},
		`DELETE /v1/keys/nobody `:                                       {404, []string{`"nobody"`}},
		`POST /v1/keys/nobody/rotate {}`:                                {404, []string{`"nobody"`}},
		`DELETE /v1/keys/alice `:                                        {409, []string{"alice", "server.keys"}},
		`POST /v1/keys/server.api_key/rotate {}`:                        {409, []string{"server.api_key", "configuration"}},
		`POST /v1/keys/ci/rotate {"graceSeconds": 604801}`:              {400, []string{"graceSeconds", "604800"}},
		`POST /v1/keys/ci/rotate {"expiresAt": "2020-01-01T00:00:00Z"}`: {400, []string{"expiresAt", "future"}},
		`GET /v1/keys?pageSize=1001 `:                                   {400, []string{"pageSize"}},
	} {
		method, rest, _ := strings.Cut(request, " ")
		path, body, _ := strings.Cut(rest, " ")
		status, text := exchange(t, s, method, path, body, adminSecret)
		if status != want.status {
			t.Errorf("%s: %d, want %d: %s", request, status, want.status, text)
		}
		for _, word := range want.words {
			if !strings.Contains(text, word) && !strings.Contains(text, strings.ReplaceAll(word, `"`, `\"`)) {
				t.Errorf("%s: %q is not in %s", request, word, text)
			}
		}
	}
}

// TestKeysWithoutAStore: those of the configuration are shown, and others cannot be made.
func TestKeysWithoutAStore(t *testing.T) {
	s := serve(t, newBackend(), allKeys()...)
	if status, text := exchange(t, s, http.MethodGet, "/v1/keys", "", adminSecret); status != 200 || !strings.Contains(text, `"alice"`) {
		t.Errorf("list: %d, %s", status, text)
	}
	for _, request := range []string{`POST /v1/keys {"name": "ci", "role": "user"}`, `POST /v1/keys/ci/rotate {}`, `DELETE /v1/keys/ci `} {
		method, rest, _ := strings.Cut(request, " ")
		path, body, _ := strings.Cut(rest, " ")
		if status, text := exchange(t, s, method, path, body, adminSecret); status != 501 || !strings.Contains(text, "NOT_IMPLEMENTED") {
			t.Errorf("%s: %d, %s", request, status, text)
		}
	}
}

// TestNoKeyIsMadeWhileThereIsNone: it would not close the service.
func TestNoKeyIsMadeWhileThereIsNone(t *testing.T) {
	records, err := store.Open(t.TempDir(), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer records.Close()
	ring, err := keys.New(t.Context(), keys.Options{Store: records, Logger: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer ring.Close()
	s := serveWith(t, api.Options{Backend: newBackend(), Keys: ring})
	status, text := exchange(t, s, http.MethodPost, "/v1/keys", `{"name": "ci", "role": "admin"}`, "")
	if status != 409 || !strings.Contains(text, "server.api_key") {
		t.Errorf("%d, %s", status, text)
	}
}

// TestExpiryOfAKey: it is refused from that time on.
func TestExpiryOfAKey(t *testing.T) {
	now := &clock{now: birth}
	s := serveWith(t, api.Options{Backend: newBackend(), Keys: keptKeys(t, now.Now), Clock: now.Now})
	issued := createKey(t, s, gen.CreateKeyRequest{Name: "ci", Role: gen.KeyRoleUser, ExpiresAt: new(birth.Add(time.Hour))})
	now.move(time.Hour - time.Nanosecond)
	if status := statusOf(t, s, http.MethodGet, "/v1/sandboxes", "", issued.Secret); status != 200 {
		t.Errorf("before it expires: %d", status)
	}
	now.move(time.Nanosecond)
	if status := statusOf(t, s, http.MethodGet, "/v1/sandboxes", "", issued.Secret); status != 401 {
		t.Errorf("once it has expired: %d", status)
	}
	if status, text := exchange(t, s, http.MethodPost, "/v1/keys/ci/rotate", "", adminSecret); status != 409 || !strings.Contains(text, "expiresAt") {
		t.Errorf("rotation of an expired key: %d, %s", status, text)
	}
	again, err := s.client.RotateKeyWithResponse(t.Context(), "ci", gen.RotateKeyRequest{ExpiresAt: new(birth.Add(2 * time.Hour)), GraceSeconds: new(60)}, with(adminSecret))
	if err != nil || again.JSON200 == nil || again.JSON200.Key.PreviousSecretExpiresAt != nil {
		t.Fatalf("%v, %s", err, again.Body)
	}
	for secret, want := range map[string]int{issued.Secret: 401, again.JSON200.Secret: 200} {
		if status := statusOf(t, s, http.MethodGet, "/v1/sandboxes", "", secret); status != want {
			t.Errorf("after the rotation: %d, want %d", status, want)
		}
	}
}

// TestGraceOfARotation: the secret before stays valid for as long as was asked for, the one before
// that does not.
func TestGraceOfARotation(t *testing.T) {
	now := &clock{now: birth}
	s := serveWith(t, api.Options{Backend: newBackend(), Keys: keptKeys(t, now.Now), Clock: now.Now})
	secrets := []string{createKey(t, s, gen.CreateKeyRequest{Name: "ci", Role: gen.KeyRoleUser}).Secret}
	rotate := func(grace int) *gen.IssuedKey {
		r, err := s.client.RotateKeyWithResponse(t.Context(), "ci", gen.RotateKeyRequest{GraceSeconds: new(grace)}, with(adminSecret))
		if err != nil || r.JSON200 == nil {
			t.Fatalf("%v, %s", err, r.Body)
		}
		secrets = append(secrets, r.JSON200.Secret)
		return r.JSON200
	}
	expect := func(at string, want ...int) {
		t.Helper()
		for i, secret := range secrets {
			if status := statusOf(t, s, http.MethodGet, "/v1/sandboxes", "", secret); status != want[i] {
				t.Errorf("%s: secret %d: %d, want %d", at, i, status, want[i])
			}
		}
	}
	if until := rotate(60).Key.PreviousSecretExpiresAt; until == nil || until.Sub(birth) > time.Minute || until.Sub(birth) < time.Minute-time.Millisecond {
		t.Errorf("the grace ends at %v", until)
	}
	expect("within the grace", 200, 200)
	rotate(60)
	expect("after another rotation", 401, 200, 200)
	now.move(time.Minute)
	expect("after the grace", 401, 401, 200)
	rotate(0)
	expect("without a grace", 401, 401, 401, 200)
}

// TestARemovedKeyIsCutOff: what goes on ends with the key that began it.
func TestARemovedKeyIsCutOff(t *testing.T) {
	for name, end := range map[string]string{
		"removed": "DELETE /v1/keys/ci", "rotated": "POST /v1/keys/ci/rotate",
	} {
		t.Run(name, func(t *testing.T) {
			b := newBackend()
			b.sandbox.Owner, b.sandbox.Status.State = "ci", lifecycle.StateRunning
			begun := make(chan struct{})
			b.box = newBox(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = w.Write([]byte("begun\n"))
				_ = http.NewResponseController(w).Flush()
				close(begun)
				<-r.Context().Done()
			})
			s := serveWith(t, api.Options{Backend: b, Keys: keptKeys(t, nil)})
			issued := createKey(t, s, gen.CreateKeyRequest{Name: "ci", Role: gen.KeyRoleUser})
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/v1/sandboxes/"+b.sandbox.ID+"/proxy/8000", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("SERVICE-API-KEY", issued.Secret)
			response, err := wait.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			lines := bufio.NewScanner(response.Body)
			if !lines.Scan() {
				t.Fatal("nothing came")
			}
			wait.For(t, "the request reaches the sandbox", begun)
			method, path, _ := strings.Cut(end, " ")
			if status, text := exchange(t, s, method, path, "", adminSecret); status >= 300 {
				t.Fatalf("%d, %s", status, text)
			}
			if lines.Scan() || lines.Err() == nil {
				t.Error("the answer goes on, or looks whole")
			}
		})
	}
}

// exchange sends a request and returns the whole answer, which is held to the contract.
func exchange(t *testing.T, s *service, method, path, body, secret string) (status int, text string) {
	t.Helper()
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, s.url+path, content)
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if err := with(secret)(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	response, err := s.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(answer)
}
