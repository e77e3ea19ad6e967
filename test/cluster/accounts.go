package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Accounts are kubeconfig files of the service accounts that the chart deploy/helm/sandbox makes,
// with the rights that it gives them and no others: what the programs of an installation have.
type Accounts struct {
	Server, Controller, Gateway string
}

// accountsRelease is the release whose accounts Accounts makes.
const accountsRelease = "sandbox"

// grants matches the objects of the chart that accounts and their rights are made of.
var grants = regexp.MustCompile(`(?m)^kind: (ServiceAccount|Role|RoleBinding|ClusterRole)$`)

// Accounts makes the chart's service accounts, roles and bindings in a namespace that exists, for
// sandboxes in that namespace, and writes their kubeconfig files into a folder. The API server's
// token for an account is valid for a day.
func (c *Cluster) Accounts(ctx context.Context, namespace, folder string) (Accounts, error) {
	chart := filepath.Join(c.scripts, "..", "..", "deploy", "helm", "sandbox")
	rendered, err := c.Helm(ctx, "template", accountsRelease, chart, "--namespace", namespace)
	if err != nil {
		return Accounts{}, err
	}
	var objects []string
	for _, object := range strings.Split(string(rendered), "\n---\n") {
		if grants.MatchString(object) {
			objects = append(objects, object)
		}
	}
	if _, err := c.Kubectl(ctx, strings.NewReader(strings.Join(objects, "\n---\n")), "apply", "-f",
		"-"); err != nil {
		return Accounts{}, err
	}
	view, err := c.Kubectl(ctx, nil, "config", "view", "--raw", "--minify", "--flatten", "--output",
		"json")
	if err != nil {
		return Accounts{}, err
	}
	var made Accounts
	for component, path := range map[string]*string{"server": &made.Server,
		"controller": &made.Controller, "gateway": &made.Gateway} {
		*path = filepath.Join(folder, namespace+"-"+component+".kubeconfig")
		if err := c.account(ctx, view, namespace, accountsRelease+"-"+component, *path); err != nil {
			return Accounts{}, err
		}
	}
	return made, nil
}

// account writes a kubeconfig file with the token of a service account, in the place of the
// administrator's access in view.
func (c *Cluster) account(ctx context.Context, view []byte, namespace, account, path string) error {
	token, err := c.Kubectl(ctx, nil, "create", "token", account, "--namespace", namespace,
		"--duration", "24h")
	if err != nil {
		return err
	}
	var config map[string]any
	if err := json.Unmarshal(view, &config); err != nil {
		return fmt.Errorf("kubectl config view: %w", err)
	}
	contexts, ok := config["contexts"].([]any)
	if !ok || len(contexts) != 1 {
		return fmt.Errorf("kubectl config view: want one context, got %v", config["contexts"])
	}
	current, _ := contexts[0].(map[string]any)
	named, ok := current["context"].(map[string]any)
	if !ok {
		return fmt.Errorf("kubectl config view: a context is %v", contexts[0])
	}
	named["user"], named["namespace"] = account, namespace
	config["users"] = []any{map[string]any{"name": account,
		"user": map[string]any{"token": string(bytes.TrimSpace(token))}}}
	content, err := json.Marshal(config) // JSON is YAML
	if err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o600)
}
