package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Accounts are kubeconfig files of the service accounts that the chart deploy/helm/sandbox makes,
// with the rights that it gives them and no others: what the programs of an installation have.
type Accounts struct {
	Server, Controller, Gateway string
}

const (
	// accountsRelease is the release whose accounts Accounts makes, and anyNamespace stands for its
	// namespace in what the chart was rendered to.
	accountsRelease = "sandbox"
	anyNamespace    = "namespace-of-the-accounts"

	// answerBytes bounds what is read of an answer of the API server.
	answerBytes = 1 << 20
)

var (
	kindOf = regexp.MustCompile(`(?m)^kind: (\w+)$`)
	nameOf = regexp.MustCompile(`(?m)^metadata:\n(?:  .*\n)*?  name: (\S+)$`)

	// grants are the kinds of the chart's objects that accounts and their rights are made of, with
	// their paths at the API server.
	grants = map[string]string{
		"ServiceAccount": "/api/v1/namespaces/%s/serviceaccounts/",
		"Role":           "/apis/rbac.authorization.k8s.io/v1/namespaces/%s/roles/",
		"RoleBinding":    "/apis/rbac.authorization.k8s.io/v1/namespaces/%s/rolebindings/",
		"ClusterRole":    "/apis/rbac.authorization.k8s.io/v1/clusterroles/",
	}
)

// Accounts makes the chart's service accounts, roles and bindings in a namespace that exists, for
// sandboxes in that namespace, and writes their kubeconfig files into a directory. The API server's
// token for an account is valid for a day.
//
// Many tests have a namespace of their own. The chart is rendered once, and the API server is asked
// directly: a program of kubectl for each step took a quarter of the time of those tests.
func (c *Cluster) Accounts(ctx context.Context, namespace, directory string) (_ Accounts, err error) {
	chart, err := c.chart(ctx)
	if err != nil {
		return Accounts{}, err
	}
	admin, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return Accounts{}, err
	}
	a := accounts{admin: admin, namespace: namespace}
	if a.client, err = rest.HTTPClientFor(admin); err != nil {
		return Accounts{}, err
	}
	defer utilnet.CloseIdleConnectionsFor(a.client.Transport)
	if err := a.apply(ctx, strings.ReplaceAll(chart, anyNamespace, namespace)); err != nil {
		return Accounts{}, err
	}
	var made Accounts
	for component, path := range map[string]*string{"server": &made.Server,
		"controller": &made.Controller, "gateway": &made.Gateway} {
		*path = filepath.Join(directory, namespace+"-"+component+".kubeconfig")
		if err := a.write(ctx, accountsRelease+"-"+component, *path); err != nil {
			return Accounts{}, err
		}
	}
	return made, nil
}

// chart returns the chart, rendered for a release in anyNamespace.
func (c *Cluster) chart(ctx context.Context) (string, error) {
	c.rendering.Lock()
	defer c.rendering.Unlock()
	if c.rendered == "" {
		chart := filepath.Join(c.scripts, "..", "..", "deploy", "helm", "sandbox")
		rendered, err := c.Helm(ctx, "template", accountsRelease, chart, "--namespace", anyNamespace)
		if err != nil {
			return "", err
		}
		c.rendered = string(rendered)
	}
	return c.rendered, nil
}

// accounts makes the accounts of one namespace, as an administrator.
type accounts struct {
	admin     *rest.Config
	client    *http.Client
	namespace string
}

// apply makes the accounts of a rendered chart, and what gives them their rights.
func (a accounts) apply(ctx context.Context, chart string) error {
	applied := 0
	for _, object := range strings.Split(chart, "\n---\n") {
		kind := kindOf.FindStringSubmatch(object)
		if kind == nil || grants[kind[1]] == "" {
			continue
		}
		name := nameOf.FindStringSubmatch(object)
		if name == nil {
			return fmt.Errorf("the chart has a %s without a name: %s", kind[1], object)
		}
		path := grants[kind[1]]
		if strings.Contains(path, "%s") {
			path = fmt.Sprintf(path, a.namespace)
		}
		path += name[1] + "?fieldManager=tests&force=true"
		if _, err := a.send(ctx, http.MethodPatch, path, "application/apply-patch+yaml", object); err != nil {
			return err
		}
		applied++
	}
	if applied == 0 {
		return errors.New("the chart has no accounts")
	}
	return nil
}

// write writes a kubeconfig file with a token of an account.
func (a accounts) write(ctx context.Context, account, path string) error {
	answer, err := a.send(ctx, http.MethodPost,
		fmt.Sprintf(grants["ServiceAccount"], a.namespace)+account+"/token", "application/json",
		`{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 86400}}`)
	if err != nil {
		return err
	}
	var requested struct {
		Status struct{ Token string }
	}
	if err := json.Unmarshal(answer, &requested); err != nil {
		return fmt.Errorf("cannot decode the token of account %s: %w", account, err)
	}
	if requested.Status.Token == "" {
		return fmt.Errorf("the API server gave account %s no token", account)
	}
	authority := a.admin.CAData
	if len(authority) == 0 && a.admin.CAFile != "" {
		if authority, err = os.ReadFile(a.admin.CAFile); err != nil {
			return err
		}
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["cluster"] = &clientcmdapi.Cluster{
		Server: a.admin.Host, CertificateAuthorityData: authority,
		InsecureSkipTLSVerify: a.admin.Insecure, TLSServerName: a.admin.ServerName,
	}
	config.AuthInfos[account] = &clientcmdapi.AuthInfo{Token: requested.Status.Token}
	config.Contexts["context"] = &clientcmdapi.Context{
		Cluster: "cluster", AuthInfo: account, Namespace: a.namespace,
	}
	config.CurrentContext = "context"
	return clientcmd.WriteToFile(*config, path)
}

// send sends a request to the API server and returns the body of its answer. Any status but 200 and
// 201 is an error.
func (a accounts) send(ctx context.Context, method, path, kind, body string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, a.admin.Host+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", kind)
	response, err := a.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close() //nolint:errcheck // it was read
	answer, err := io.ReadAll(io.LimitReader(response.Body, answerBytes))
	if err == nil && response.StatusCode != http.StatusOK && response.StatusCode != http.StatusCreated {
		err = fmt.Errorf("%s %s: %s: %s", method, path, response.Status, bytes.TrimSpace(answer))
	}
	return answer, err
}
