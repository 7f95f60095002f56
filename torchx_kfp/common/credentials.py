"""Usual names of files with credentials.

Taken from secret scanners (gitrob, whispers, leaky-repo) and common ML tools: clouds, hubs, and trackers. Matching
ignores case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

#: Names of files, in the syntax of ``.gitignore``.
_NAMES = (
    # environments
    *(".env", ".env.*", "*.env", ".envrc", "!.env.example", "!.env.sample", "!.env.template", "!.env.dist"),
    # keys and the stores of them
    *("*.pem", "*.key", "*.p8", "*.p12", "*.pfx", "*.pk8", "*.pkcs12", "*.ppk", "*.jks", "*.jceks", "*.keystore"),
    *("*.bcfks", "*.kdb", "*.kdbx", "*.keychain", "*.agilekeychain", "*.kwallet", "*.psafe3", "*.keytab", "*.bek"),
    *("ssh_host_*_key", "private_key*", "private-key*", "privkey*"),
    *("key.asc", "*[-_.]key.asc", "!public[-_]key.asc", "*private*.asc", "*secret*.asc", "*.rdp", "*.cscfg"),
    *("*.ovpn", "*.tblk", "*.agekey", "*.gpgkey", "krb5cc_*", "secring*", "otr.private_key", "master.key"),
    *("id_*", "!id_*.*", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*_rsa", "*_dsa", "*_ecdsa", "*_ed25519"),
    # words
    *("secret", "secrets", "*.secret", "*.secrets", "secret.*", "secrets.*", ".secret*", "secret_token.*"),
    *("*[-_.]secret.y*ml", "*[-_.]secrets.y*ml", "*[-_.]secret.json", "*[-_.]secrets.json", "*[-_.]secrets.toml"),
    *("creds", "creds.*", "*[-_]creds.json", "*[-_]credentials", "*credentials*.csv"),
    *("credential", "credentials", "credentials.*", ".credentials*", "*credentials*.json"),
    *("password", "passwords", "password.*", "passwords.*", "*.passwd", "passwd", "shadow"),
    *(".htpasswd", "htpasswd", "proftpdpasswd", ".pgpass", "pgpass", ".my.cnf", ".mylogin.cnf", "master_password*"),
    # clouds
    *("client_secret*.json", "service_account*.json", "service-account*.json", "serviceaccount*.json"),
    *("*service-account*.json", "*service_account*.json", "*firebase-adminsdk*.json", "gha-creds-*.json", "gcp-key*"),
    *("application_default_credentials.json", "accesskeys.csv", "*_accesskeys.csv", "rootkey.csv", ".boto", ".s3cfg"),
    *("gcp.json", "gcloud*.json", "sa.json", "sa-key*.json", "sa_key*.json", "key.json", "keyfile.json"),
    *("local.settings.json", "azureauth.json", "azureprofile.json", "passwd-s3fs", ".lakectl.yaml", "admin.conf"),
    *("s3cfg", "rclone.conf", ".passwd-s3fs", ".databrickscfg", ".snowsql", "*.publishsettings", ".tugboat"),
    *("terraform.tfstate*", "*.tfstate", "*.tfstate.*", "*.tfvars", ".terraformrc", "terraform.rc", ".vault-token"),
    *("*.vault", ".vault_pass*", "vault_pass*", "heroku.json", "kubeconfig", "kubeconfig.*", "*.kubeconfig"),
    # packages, repositories and hubs
    *(".npmrc", ".yarnrc.yml", ".pypirc", "pip.conf", ".condarc", ".netrc", "_netrc", ".git-credentials", ".dockercfg"),
    *(".dockerconfigjson", "kaggle.json", ".comet.config", ".gitrobrc", "auth.json", "token.json"),
    *("token.pickle", "token", ".token", "*.token", "hf_token*", "huggingface_token*", "api_key.*"),
    *(".*[-_]token", "git*[-_]token", "gh[-_]token", "slack[-_]token", "*api[-_]token", "*access[-_]token"),
    *("*[-_]token.txt", "token.txt", "oauth.json", "*api_key", "*api-key", "*api[-_]key.txt", "*secret[-_]key.txt"),
    *("*access[-_]key.txt", "openai[-_]key.txt", "wandb[-_]key.txt"),
    *("api-key.*", "apikeys.*", "wandb_api_key*", ".wandb_api_key", "clearml.conf", ".clearml.conf", ".gitconfig"),
    *("jupyter_server_config.json", "jupyter_notebook_config.json", ".renviron", "pip.ini", ".yarnrc", "ngrok.yml"),
    *("api_keys", "api_keys.*", "apikey", "apikey.*"),
    # other programs
    *("sftp-config.json", "sftp.json", ".ftpconfig", ".remote-sync.json", "filezilla.xml", "recentservers.xml"),
    *("sitemanager.xml", "webservers.xml", ".dbeaver-data-sources.xml", "logins.json", ".muttrc", ".esmtprc"),
    *(".msmtprc", "wp-config.php", "ventrilo_srv.ini", ".fetchmailrc", ".erlang.cookie", "knife.rb", "robomongo.json"),
    *(".pg_service.conf", "pgpass.conf", "cookies.txt", "cookies.sqlite", "key3.db", "key4.db", "wallet.dat"),
    *("settings-security.xml", ".*_history", "fish_history", "!*.pub"),
    # modules; secrets.py is what programs for microcontrollers have their passwords in, and these name one key
    *("![!.]*.py", "secrets.py", "secret_token.py", "master_password*", "wandb_api_key*", "private-key*", "api-key.*"),
    *("hf_token*", "huggingface_token*"),
)
#: Folders and files in them, likewise.
_PATHS = (
    *(".aws/", ".azure/", ".config/gcloud/", ".gcloud/", ".oci/", ".bluemix/", ".aliyun/", ".ssh/", ".gnupg/"),
    *(".docker/config.json", ".config/gh/", ".config/hub", ".config/pip/pip.conf", ".pip/", ".huggingface/", ".kube/"),
    *("huggingface/token", "huggingface/stored_tokens", ".kaggle/", ".ngc/", ".mc/config.json", ".snowflake/"),
    *(".cargo/credentials", ".cargo/credentials.toml", ".gem/credentials", ".composer/auth.json", ".modal.toml"),
    *(".cloudflared/", ".ngrok2/", ".dagshub/", ".dvc/config.local", ".config/dvc/", ".config/op/", ".config/doctl/"),
    *(".config/stripe/", ".config/glab-cli/", ".config/sops/", ".dbt/profiles.yml", ".snowsql/", ".jupyter/", ".chef/"),
    *(".gradle/gradle.properties", ".m2/settings.xml", ".subversion/auth/", ".password-store/", ".terraform.d/"),
)


def matcher(lines: Iterable[str]) -> Callable[[str], bool]:
    """Return a predicate for paths from lines in ``.gitignore`` syntax; the last matching line decides."""
    from pathspec import GitIgnoreSpec  # loaded when a workspace is packed

    # Its own match_file depends on the engine of regular expressions that is installed: without google-re2, version 1.1
    # prefers a line for files (!*) to a later one for a folder.
    patterns = [pattern for pattern in GitIgnoreSpec.from_lines(lines).patterns if pattern.include is not None]

    def matches(path: str) -> bool:
        return next((bool(it.include) for it in reversed(patterns) if it.match_file(path) is not None), False)

    return matches


def credentials_matcher() -> Callable[[str], bool]:
    """Return a predicate for paths of files that usually contain credentials."""
    in_name, in_path = matcher(_NAMES), matcher(f"**/{path}" for path in _PATHS)

    def looks_secret(path: str) -> bool:
        path = path.lower()
        return in_name(path.rpartition("/")[2]) or in_path(path)

    return looks_secret
